"""ledgerlog: a replicated, durable log for Python services, built on ledgers, on trio."""
