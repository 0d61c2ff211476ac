// Exists so that a precompiled header has a target to be built by.
