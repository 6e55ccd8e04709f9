"""The metrics of a process, for Prometheus and for programs.

    families       the table of all metrics: name, kind, labels, meaning, and when to alert
    client         reads the counts of a client
    prometheus     turns the values into prometheus_client's objects, and into text

Cores and shells keep the counts themselves (``ledgerlog.counts``). These modules only read the counts, at the
moment when a client asks for metrics. So metrics cost nothing between two scrapes.
"""
