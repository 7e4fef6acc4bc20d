// The errors that reprise throws: one small family, so that a caller can catch what it can mend.
//
// Every text says what was wrong (with the offending value), where, and what to do. After any of
// them reprise and LibTorch are as they were before the failing call, and the next step works.
// Errors thrown while autograd runs (by a recomputation, say) pass through backward() with their
// type kept.
#pragma once

#include <stdexcept>
#include <string>

namespace reprise {

// Base of all errors of reprise; derives from std::runtime_error and so from std::exception.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A call was given something it cannot work with: an option, a size, a combination of both.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A store (reprise/store.h) could not keep a value or bring it back: the disk is full, a read
// failed, data came back changed. The text names the place and the bytes.
class StoreError : public Error {
 public:
  using Error::Error;
};

// A recomputation did not reproduce what the forward pass saved, or could not be trusted to.
class DeterminismError : public Error {
 public:
  using Error::Error;
};

// Bytes cannot be had: everything that may go is gone, or no plan fits. The text names the bytes
// that would have done.
class BudgetError : public Error {
 public:
  using Error::Error;
};

// A schedule or plan cannot be followed: a step of it lacks what it needs, or it is of another
// chain or step. The text names where.
class PlanError : public Error {
 public:
  using Error::Error;
};

}  // namespace reprise
