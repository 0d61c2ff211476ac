#include "actors/user/user_host.h"

int main(int argc, char** argv) {
  return troupe::runtime::host_main(argc, argv);
}
