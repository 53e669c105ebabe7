"""What happens once per message: the contract (`base`) and its implementations."""
