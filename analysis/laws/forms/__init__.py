"""What laws are built of: sums of powers, variable projection, derivatives, integrals of the learning rate."""
