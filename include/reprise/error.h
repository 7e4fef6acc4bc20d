// The errors that reprise throws: one small family, so that a caller can catch what it can mend.
//
// Every text says what was wrong (with the offending value), where, and what to do. After any of
// these errors reprise and LibTorch are as they were before the failing call, and the next step
// works. Errors thrown while autograd runs, for instance by a recomputation, pass through
// backward() with their type kept.
#pragma once

#include <stdexcept>
#include <string>

namespace reprise {

// Base of all errors of reprise; derives from std::runtime_error and so from std::exception.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller gave an option, a size or a combination of both that the call cannot work with.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A store (reprise/store.h) could not keep a value or return it: the disk is full, a read failed,
// or the data came back changed. The text names the place and the bytes.
class StoreError : public Error {
 public:
  using Error::Error;
};

// A recomputation did not reproduce what forward saved, or could not be trusted to.
class DeterminismError : public Error {
 public:
  using Error::Error;
};

// The bytes do not suffice: everything droppable was dropped, or no plan fits. The text names the
// bytes that would suffice.
class BudgetError : public Error {
 public:
  using Error::Error;
};

// A schedule or plan cannot be followed: one of its operations lacks its input, or it was made for
// another chain or step. The text names the place.
class PlanError : public Error {
 public:
  using Error::Error;
};

}  // namespace reprise
