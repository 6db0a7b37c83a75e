"""One per host and job: fan in, look at processes from outside, keep, fan out. It reads envelopes, not meaning."""
