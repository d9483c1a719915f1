"""`sapwood top`: what running engines do, on a terminal.

::

    cli -> app -> panels | dialogs        drawing and keys (textual)
           once                           the same as plain text
           poller -> engines              asks, and where to ask
    history -> figures | cache_changes    pure: what answers, one after the other, come to
    samples, shown                        pure: one answer as a value; numbers as texts
    fields                                pure: values of answers by their types
"""
