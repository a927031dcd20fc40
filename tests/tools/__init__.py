"""What is run by hand or by make, and not by pytest; tests may import it."""
