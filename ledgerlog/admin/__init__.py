"""The administration port of a process: HTTP for monitoring and for operators.

    http       HTTP/1.1 over streams, by h11: bounds, deadlines, connections
    gate       decides who may send which requests
    routes     the routes of every process: health, metrics, configuration, levels of the log

A process adds its own routes (``bookie.server.administration``). docs/OPERATIONS.md lists them, and
docs/SECURITY.md says who may use them.
"""
