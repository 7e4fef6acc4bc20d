// Schedules of a pipeline: the order in which each worker runs micro-batches through its stages.
//
//   auto schedule = reprise::schedules::one_forward_one_backward(4, 8);  // 4 workers, 8 micro-batches
//   std::cout << schedule.csv();
//   auto run = reprise::simulate(schedule, reprise::PipelineCosts::even(4), {.checkpoint_stop = 7});
//   std::cout << run.text() << run.bubble << '\n';
//
// A model is cut into *stages*, numbered from its input. A *worker* runs one stage or several, on
// one device. A mini-batch is cut into *micro-batches*. A schedule is a list of *actions* for each
// worker. Schedules are plain data without tensors: reprise::Pipeline (reprise/pipeline.h) runs
// them, simulate() predicts them, and the text form is that of torch.distributed.pipelining, so
// that both libraries read each other's. All functions may be called from any thread.
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace reprise {

enum class PipelineWork {
  kForward,         // F
  kBackward,        // B: gradients of the stage's input and of its parameters
  kInputGradient,   // I: of its input alone
  kWeightGradient,  // W: of its parameters alone, after I
};

struct PipelineAction {
  std::int64_t stage = 0;
  PipelineWork work = PipelineWork::kForward;
  std::int64_t micro_batch = 0;

  bool operator==(const PipelineAction&) const = default;
};

// "0F3": stage 0 runs forward of micro-batch 3.
std::string to_string(const PipelineAction& action);

// A slot is one place in a worker's list. It holds nothing (an idle slot), one action, or two that
// may overlap (DualPipeV). Two that do not overlap run in their order. An idle slot only aligns tables
// that people read: workers pass over it.
using PipelineSlot = std::vector<PipelineAction>;

struct PipelineSchedule {
  std::string name;  // for pictures; schedules read from text have none
  std::int64_t stages = 0;
  std::int64_t micro_batches = 0;
  std::vector<std::vector<PipelineSlot>> workers;

  bool operator==(const PipelineSchedule&) const = default;

  // The worker that runs each stage. Throws PlanError for a stage that no worker runs, or several.
  std::vector<std::int64_t> worker_of_stage() const;

  // Throws PlanError unless
  // - each worker runs at least one stage, and each stage runs on one worker;
  // - each micro-batch has, on each stage, one F and after it either one B, or one I and a later W;
  // - the workers do not wait for each other forever, each running its list in order. F waits for
  //   the F of the stage before, B and I for the B or I of the stage after;
  // - slots hold at most two actions, and stages x micro_batches is at most 4,194,304.
  // The text names worker, slot and action, counted from 0, and for a deadlock all waits in it.
  void check() const;

  // A line for each worker, cells separated by commas: `0F0,0F1,,0B0`. An empty cell is an idle
  // slot, `(0F3;3B1)OVERLAP_F_B` holds two actions that may overlap. torch.distributed.pipelining
  // reads and writes the same.
  std::string csv() const;
  // Reads that text and checks the schedule. Blank lines are skipped, and so are torch's actions
  // that move tensors or parameters (SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD):
  // a pipeline of reprise moves them by itself. Throws PlanError with line and cell, counted from 1,
  // and what was expected.
  static PipelineSchedule parse_csv(std::string_view text);
  // The same from a file, whose name stands before the text of errors. Throws UsageError if the file
  // cannot be read.
  static PipelineSchedule read_csv(const std::filesystem::path& file);
};

namespace schedules {

// -- Schedules by name
//
// `workers`, `stages_per_worker` and `micro_batches` must each be at least 1, and the forwards
// (stages x micro_batches) at most 4,194,304. Each function throws UsageError, with the value and
// the bound, for others, and for the restrictions that its comment names.
//
// The tables of the schedules with several stages a worker are those of torch.distributed.pipelining
// 2.13, idle slots included. In gpipe() and one_forward_one_backward() idle slots align the cells as
// if all actions took the same time.

// The order in which GPipe's backward takes the micro-batches. Descending order runs the last
// micro-batch's backward right after its forward, so that one needs no recomputation.
enum class BackwardOrder { kDescending, kAscending };

// All forwards, then all backwards (Huang et al., arXiv:1811.06965). torch has the ascending order.
PipelineSchedule gpipe(std::int64_t workers, std::int64_t micro_batches,
                       BackwardOrder order = BackwardOrder::kDescending);

// 1F1B: at most `workers - stage` micro-batches are in flight on a stage (PipeDream-Flush, Narayanan
// et al., arXiv:2006.09503). There may be fewer micro-batches than workers, which torch refuses.
PipelineSchedule one_forward_one_backward(std::int64_t workers, std::int64_t micro_batches);

// All micro-batches pass a stage before the worker's next stage begins (Lamy-Poirier,
// arXiv:2211.05953). Stage s runs on worker s mod workers, here and in the next two.
PipelineSchedule looped_breadth_first(std::int64_t workers, std::int64_t stages_per_worker,
                                      std::int64_t micro_batches);

// Interleaved 1F1B (Narayanan et al., arXiv:2104.04473). The micro-batches pass in
// max(1, micro_batches / workers) rounds, rounded down. `micro_batches` must be a multiple of the
// rounds.
PipelineSchedule interleaved_1f1b(std::int64_t workers, std::int64_t stages_per_worker,
                                  std::int64_t micro_batches);

// The same with input and weight gradients apart, so that weight gradients fill the bubble (Qi et al.,
// arXiv:2401.10241). Rounds are as in interleaved_1f1b().
PipelineSchedule interleaved_zero_bubble(std::int64_t workers, std::int64_t stages_per_worker,
                                         std::int64_t micro_batches);

// ZB-V: two stages a worker, s and 2 x workers - 1 - s, so that worker 0 has the first and the last
// (Qi et al., arXiv:2401.10241, section 6). Workers idle only before their first action and after
// their last, if F, I and W take the same time and micro_batches is at least 2 x workers - 1.
PipelineSchedule zero_bubble_v(std::int64_t workers, std::int64_t micro_batches);

// DualPipe cut in half: the stages of zero_bubble_v(), with forwards and backwards that overlap
// (DeepSeek-AI, arXiv:2412.19437). Needs at least as many micro-batches as stages, 2 x workers.
PipelineSchedule dual_pipe_v(std::int64_t workers, std::int64_t micro_batches);

// The schedule with one of the names(). Throws UsageError with the list for another name, and for
// `stages_per_worker` other than 1 for gpipe and 1f1b, and other than 2 for zbv and dualpipev.
PipelineSchedule by_name(std::string_view name, std::int64_t workers,
                         std::int64_t stages_per_worker, std::int64_t micro_batches);
// The names that the command line takes: gpipe, 1f1b, looped-bfs, interleaved-1f1b, zero-bubble,
// zbv, dualpipev.
const std::vector<std::string>& names();

}  // namespace schedules

// -- Lives of activations

// How many activations each worker holds. An activation is what one stage saves of one micro-batch.
// It lives from its F until its B or W, both slots included: I frees nothing, since W may read all
// of it. A checkpointed one lives from the slot of its B or I, where it is recomputed, and before
// that only the stage's input is held.
struct PipelineLives {
  struct Worker {
    // After each slot of the worker's list.
    std::vector<std::int64_t> kept, checkpointed;
    // The most at once. Within a slot, all that it makes and all that it frees are there.
    std::int64_t peak_kept = 0, peak_checkpointed = 0;
    // The buffer of each activation, in the order of the worker's F: two share a buffer if one's
    // life ends before the other's begins. There are as few buffers as that permits.
    std::vector<std::int64_t> buffer;
    std::int64_t buffers = 0;
  };
  std::vector<Worker> workers;
};

// Micro-batches below `checkpoint_stop` are checkpointed; from the schedule's micro_batches on, all
// are. Throws UsageError if `checkpoint_stop` is negative, and PlanError as check().
PipelineLives activation_lives(const PipelineSchedule& schedule, std::int64_t checkpoint_stop = 0);

// -- Simulation

// One stage's figures, of one micro-batch unless said otherwise. Times are between 0 and 1e9
// seconds, bytes between 0 and 2^39.
struct PipelineStageCosts {
  Seconds forward{}, backward{};
  // The times of I and W. If both are zero, each takes half of `backward`.
  Seconds input_gradient{}, weight_gradient{};
  Seconds recompute{};  // the second forward of a checkpointed micro-batch
  // How long the output of F takes to the next stage. The gradient takes as long from there to here.
  // 0 where one worker runs both stages.
  Seconds send{};
  Bytes input;  // of the stage, and of the gradient that it sends back
  Bytes saved;  // kept for backward besides the input
  Bytes
      saved_for_weights;  // the part of `input` and `saved` that W needs after I; with a plan, all
                          // that stays between the two
  Bytes temporaries;      // at once, during forward, recomputation or backward
  Bytes resident;         // parameters, their gradients and the like: throughout
};

struct PipelineCosts {
  std::vector<PipelineStageCosts> stages;

  // Each stage takes 1 second forward, 2 backward, 1 to recompute, and 1 each for I and W. Sends
  // take no time. It saves 1 byte, which W needs; its input has none. Throws UsageError for fewer
  // than one stage.
  static PipelineCosts even(std::int64_t stages);
};

// What one stage does with one micro-batch, where that is planned (reprise/pipeline_residency.h).
struct PipelineMicroBatch {
  Bytes kept;           // between its forward and its backward, its input included
  Bytes forward_peak;   // most at once during its forward
  Bytes backward_peak;  // most at once from its recomputation to the end of its backward (or I)
  Seconds recompute{};  // before its backward, without waiting for the gradient
  Seconds recompute_within{};          // during its backward
  std::int64_t recomputed_layers = 0;  // layers that run at least twice
  std::int64_t layers = 0;             // all of them

  bool operator==(const PipelineMicroBatch&) const = default;
};

struct PipelineSimulation {
  // Micro-batches below it are checkpointed.
  std::int64_t checkpoint_stop = 0;
  // In place of `checkpoint_stop`, a plan: of each stage, its micro-batches.
  std::vector<std::vector<PipelineMicroBatch>> micro_batches = {};
  // Whether a recomputation starts as soon as the worker is free, and does not wait for the
  // gradient. It is then hidden where the worker would idle.
  bool recompute_ahead = true;
};

struct PipelineEvent {
  PipelineAction action;
  bool recompute = false;  // the recomputation before that B or I
  Seconds begin{}, end{};
};

// What a step did, or is predicted to do. Times count from the step's begin.
struct PipelineTimeline {
  struct Worker {
    std::vector<PipelineEvent> events;  // in order
    Seconds busy{};                     // the sum of the events
    Bytes peak;
  };
  std::string name;
  std::vector<Worker> workers;
  Seconds time{};     // of the step
  double bubble = 0;  // the share of workers x time in which workers are idle

  // A row of `columns` characters for each worker, its events as wide as their time: a letter (F, B,
  // I, W, or R for a recomputation) and the micro-batch, then `-` until the event ends; `.` is idle.
  // The stage stands before the letter where the worker runs several. Cells that are too narrow show
  // the letter alone, or nothing. Throws UsageError if `columns` is not between 1 and 10,000.
  std::string text(std::int64_t columns = 100) const;
  // A picture of its own, without scripts; recomputations are hatched. Throws UsageError for more
  // than a million events.
  std::string svg() const;
  // The JSON of chrome://tracing and Perfetto: one process, a thread for each worker.
  std::string chrome_trace() const;
};

// The timeline of a step. Each worker runs its list in order, and the two actions of a slot one
// after the other. An action begins when the worker is free and what the action needs has arrived:
// for F the output of the stage before, for B and I the gradient of the stage after.
//
// A worker's peak counts, besides its stages' resident bytes, temporaries and what micro-batches
// keep, also outputs and gradients that have arrived and wait for their action. The mini-batch and
// the losses belong to the caller and are not counted.
//
// Throws UsageError if the costs are out of bounds or not those of `schedule.stages` stages, if
// `checkpoint_stop` is negative, or if a plan is for other stages or micro-batches. Throws PlanError
// as check().
PipelineTimeline simulate(const PipelineSchedule& schedule, const PipelineCosts& costs,
                          const PipelineSimulation& options = {});

// -- Balance
//
// These functions cut a list of layers into `parts` runs of consecutive layers and return how many
// layers each run has, at least one. Their answers are exact. Among equally good ones they choose
// cuts near equal shares. They throw UsageError if `parts` is not between 1 and the number of
// layers, and for costs that are negative or not finite or whose sum is not finite. They take time
// proportional to layers x parts x log(layers).

// The cut with the least largest sum of costs. Costs may have any unit, such as seconds or
// parameters.
std::vector<std::int64_t> balance_by_cost(const std::vector<double>& costs, std::int64_t parts);

// The cut with the least slowest part among those in which no part's bytes are more than
// `bytes_per_part`. Bytes of layers add up to at most 2^52. Throws BudgetError, with the least bytes
// a part that would do, if no cut fits.
std::vector<std::int64_t> balance(const std::vector<Seconds>& seconds,
                                  const std::vector<Bytes>& bytes, std::int64_t parts,
                                  Bytes bytes_per_part);

}  // namespace reprise
