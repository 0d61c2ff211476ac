// Exists so that the precompiled torch header has a target to be built by.
