"""SelfCCL."""
