#pragma once

// fmt without its library: whoever links troupe::client needs none. Not for files that see torch,
// which brings a fmt of its own.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>
