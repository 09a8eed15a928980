"""What becomes native code: the rules of a policy, written out by the compiler, and all that asks no rule."""
