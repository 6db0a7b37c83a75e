"""The table of ranks and the map: columns, order, cells."""
