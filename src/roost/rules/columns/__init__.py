"""Facts about machines that several rules may need, worked out once and remembered."""
