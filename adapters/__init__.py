"""How one technology answers a port: a folder a port, a file (or folder) a technology."""
