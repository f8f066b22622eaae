"""F, dX and dW of a traced step: telling them apart, imposing an order, cutting a stage."""
