"""What all folders use: dataclasses from YAML, complete files, quick imports."""
