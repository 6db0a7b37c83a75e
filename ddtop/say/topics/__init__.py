"""The writers of findings, by topic: each module has `WRITERS`, `AROUND` or both."""
