"""Which rank this is, and what the ranks of a job agree upon."""
