"""Cases that differ from those of the corpus in how data is sharded."""
