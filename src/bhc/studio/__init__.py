"""HTTP service and web page: a network for whoever asks.

``schemas`` what a request may say, ``service`` what is answered, ``preview`` and ``inputs`` what the page shows;
``workers`` the processes that answer, ``app`` the HTTP around them, ``server`` the socket and its end.
"""
