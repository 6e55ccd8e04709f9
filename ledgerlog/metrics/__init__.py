"""What a process measures about itself, for Prometheus and for programs.

    families       the table of all metrics: name, kind, labels, meaning, and what to alert on
    client         reads the counts of a client
    prometheus     turns what was read into prometheus_client's objects, and into text

Nothing is measured here. Cores and shells keep counts where things happen (``ledgerlog.counts``), and whoever
asks has them read at that moment. So metrics cost nothing while nobody looks.
"""
