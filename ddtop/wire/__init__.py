"""What travels: the records, their bytes, and the layout of the state page.

No sockets, no clocks.
"""
