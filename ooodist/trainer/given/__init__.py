"""What a user gives to fit: arguments of overrides, and arrays of all kinds."""
