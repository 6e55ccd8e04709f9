"""The console: a cluster on a web page, and in a terminal.

    core/        pure: boards that fold what was seen into rows, and the differences between two pictures
    observer     looks at the cluster for whoever watches, and only at what they watch
    logs, ledgers, repairs, pulse
                 what is looked at for one kind of page, each feeding its board
    doors        who may look and who may change: sessions of people, and which requests a browser may make
    changes      what an admin may change
    web          the pages, the stream of differences, logging in (Starlette)
    serving      the HTTP server (hypercorn on trio)
    terminal     the same pictures in a terminal (textual)
    static/      the page itself

docs/CONSOLE.md describes it for operators.
"""
