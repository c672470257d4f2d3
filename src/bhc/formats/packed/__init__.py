"""The packed ``.bhc`` file, version 2; ``docs/format.md`` specifies it byte by byte."""
