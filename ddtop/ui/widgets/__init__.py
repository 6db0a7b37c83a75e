"""Thin widgets: they hold a cursor and a scroll position, and draw the lines that `render`
makes."""
