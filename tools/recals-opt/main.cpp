#include "tools/recals-opt/driver.h"

int main(int argc, char** argv) {
  return recals::opt::run(argc, argv);
}
