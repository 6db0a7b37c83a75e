"""The records, their encoding, and the layout of the state page.

It uses no sockets and no clocks.
"""
