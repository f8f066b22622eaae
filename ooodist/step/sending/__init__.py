"""What is sent of gradients: rows of tables, 16 bits of 32, under which name."""
