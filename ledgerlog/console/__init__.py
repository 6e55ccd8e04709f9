"""The console: a cluster on a web page, and in a terminal.

    core/        pure: boards that fold observations into rows, and the differences between two pictures
    observer     looks at the cluster for the watchers of pages, and only at the subjects that they watch
    logs, ledgers, repairs, pulse
                 the looks for one kind of page; each module feeds its board
    doors        decides who may look and who may change: sessions of people, and the requests of browsers
    changes      the changes that an admin may make
    web          the pages, the stream of differences, logging in (Starlette)
    serving      the HTTP server (hypercorn on trio)
    terminal     the same pictures in a terminal (textual)
    static/      the page itself

docs/CONSOLE.md describes it for operators.
"""
