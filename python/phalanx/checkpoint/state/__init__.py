"""What a user gives to save(), as plain values and tensors, and back."""
