"""Running a function of a program or notebook on workers, and getting its results back."""
