/// Prints the fields of a request as GET /api/v1/options describes them, for the server that stands
/// in for a real one (fake_server.py).
#include <iostream>

#include "web/fields.h"

int main() {
  std::cout << troupe::web::options_json() << "\n";
}
