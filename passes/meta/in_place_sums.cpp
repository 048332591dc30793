#include "passes/meta/in_place_sums.h"

namespace recals {

namespace {
thread_local bool in_place = false;
} // namespace

InPlaceSums::InPlaceSums() : outer_(in_place) {
  in_place = true;
}

InPlaceSums::~InPlaceSums() {
  in_place = outer_;
}

bool InPlaceSums::wanted() {
  return in_place;
}

} // namespace recals
