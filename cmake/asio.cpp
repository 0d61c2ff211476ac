// Boost.Asio's functions, compiled once for all that is compiled with
// BOOST_ASIO_SEPARATE_COMPILATION.
#include <boost/asio/impl/src.hpp>
