"""`reprise run`: a script that is not changed trains within a byte budget."""
