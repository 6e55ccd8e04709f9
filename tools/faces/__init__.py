"""The *faces* of the library, such as ``ledgerlog.blocking``, made from its asynchronous classes.

A face offers the asynchronous classes to programs that do not run under trio. Its methods have the names,
parameters and docstrings of the originals, and each only carries the call over to the loop's thread. Nobody
writes them: ``make faces`` reads the sources of the asynchronous classes and writes the ``faces.py`` of each
face. ``plans`` says which classes these are, what a face leaves out, and why; ``generator`` does the rest. A
test makes the files anew and compares them, so you cannot change a class and forget its faces.

The files are kept in the repository, so that editors, type checkers, debuggers and readers see ordinary code.
"""
