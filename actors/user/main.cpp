#include "actors/user/host_main.h"

int main(int argc, char** argv) {
  return troupe::runtime::host_main(argc, argv);
}
