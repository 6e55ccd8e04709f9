"""The administration port of a process: HTTP for monitoring and for operators.

    http       HTTP/1.1 over streams, by h11: bounds, deadlines, connections
    gate       who may ask what
    routes     what every process answers: health, metrics, configuration, levels of the log

A process adds its own routes (``bookie.server.administration``). docs/OPERATIONS.md lists them, and
docs/SECURITY.md says who may use them.
"""
