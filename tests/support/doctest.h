#pragma once
// doctest behind one door: c10 defines CHECK and friends as fatal checks, so those go before
// doctest comes in. Include this header after every torch header.
#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_GT
#undef CHECK_GE
#undef CHECK_LT
#undef CHECK_LE
#undef WARN
#undef INFO
#include <doctest/doctest.h>
