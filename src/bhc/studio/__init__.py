"""HTTP service and web page: a network for whoever asks.

``schemas`` what a request may say, ``service`` what is answered, ``preview`` what the page shows of
contexts and takes as inputs; ``workers`` the processes that answer, ``server`` the HTTP around them.
"""
