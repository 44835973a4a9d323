// Drives the caching allocator of one torch release without Python: only libc10.so and libc10_cuda.so.
// Compile with -DTORCH_MINOR=11 for 2.11.  Commands on standard input, one a line:
//   a ID BYTES STREAM   allocate; prints the address (0: out of memory)
//   u ID STREAM         record_stream
//   f ID                free
//   e                   empty_cache
//   s                   take a snapshot and forget it (leaves an event)
//   h 1 | h 0           other streams fall behind: their events stay incomplete | keep up again
//   c N                 the oldest N of those events complete
//   F FRACTION          set the memory fraction
//   S SETTINGS          change the settings; prints the allocations and the failed requests so far (2.3 and later)
//   d                   dump statistics, trace, segments and settings as one line of JSON
// Pools, 2.3 and later; (X, Y) is the id:
//   B X Y STREAM        open a scope of the pool for one stream (a graph capture) or * for any (use_mem_pool)
//   E X Y               close it
//   R X Y               one user of the pool less
//   e X Y               release this pool's memory (2.8 and later)
//   U X Y 1 | U X Y 0   requests that find no memory may | may not use this pool (2.8 and later)
//   N X Y               segments of this pool are never split (2.10 and later)
//   K X Y NUMBER        keep the state of the pool as a checkpoint with this number
//   L NUMBER ID         return to it; prints the ids that are gone, `:`, and the addresses of the new ones, from ID on
//   m 1 | m 0           a stream capture begins | ends (2.13 and later; before, an open scope counts as one)
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#if TORCH_MINOR >= 3
#include <c10/cuda/CUDAAllocatorConfig.h>
#endif
#include <c10/util/Exception.h>
#if TORCH_MINOR >= 13
#include <c10/cuda/PeerToPeerAccess.h>
#endif

#include <sys/personality.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

extern "C" void fake_hold(int hold);
extern "C" void fake_release(size_t count);

#if TORCH_MINOR >= 1
// libtorch_cuda, which is not loaded here, would register this one.  No header declares it.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*function)(c10::DeviceIndex));
}
#endif

namespace caching = c10::cuda::CUDACachingAllocator;
using u64 = unsigned long long;
using i64 = long long;

static void start_recording() {
  const size_t entries = 100000000;
#if TORCH_MINOR == 0
  caching::recordHistory(true, [] { return std::make_shared<caching::Context>(); }, entries, false);
#elif TORCH_MINOR < 8
  caching::recordHistory(true, nullptr, entries, caching::RecordContext::NEVER);
#elif TORCH_MINOR < 11
  caching::recordHistory(true, nullptr, entries, caching::RecordContext::NEVER, false);
#else
  caching::recordHistory(true, nullptr, entries, caching::RecordContext::NEVER, false, {});
#endif
}

// Passes a block to record_stream as a tensor's storage would, and keeps the storage's end from freeing it.
static void use_on_stream(void *address, u64 stream) {
  auto *allocator = caching::get();
  c10::DataPtr storage(address, address, allocator->raw_deleter(), c10::Device(c10::DeviceType::CUDA, 0));
  allocator->recordStream(storage, c10::cuda::getStreamFromExternal((cudaStream_t)stream, 0));
  storage.release_context();
}

static const char *action_name(int action) {
  static const char *const names[] = {
      "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
#if TORCH_MINOR >= 1
      "segment_map", "segment_unmap",
#endif
      "snapshot", "oom", "annotate"};
  return names[action];
}

template <class Stat>
static void print_stat(const std::string &name, const Stat &s) {
  const char *n = name.c_str();
  printf("\"%s.current\":%lld,\"%s.peak\":%lld,\"%s.allocated\":%lld,\"%s.freed\":%lld,", n, (i64)s.current, n,
         (i64)s.peak, n, (i64)s.allocated, n, (i64)s.freed);
}

template <class StatArray>
static void print_stats(const std::string &name, const StatArray &stats) {
  print_stat(name + ".all", stats[0]);
  print_stat(name + ".small_pool", stats[1]);
  print_stat(name + ".large_pool", stats[2]);
}

static void print_statistics() {
  auto stats = caching::get()->getDeviceStats(0);
  print_stats("allocation", stats.allocation);
  print_stats("segment", stats.segment);
  print_stats("active", stats.active);
  print_stats("inactive_split", stats.inactive_split);
  print_stats("allocated_bytes", stats.allocated_bytes);
  print_stats("reserved_bytes", stats.reserved_bytes);
  print_stats("active_bytes", stats.active_bytes);
  print_stats("inactive_split_bytes", stats.inactive_split_bytes);
  print_stats("requested_bytes", stats.requested_bytes);
  print_stat("oversize_allocations", stats.oversize_allocations);
  print_stat("oversize_segments", stats.oversize_segments);
#if TORCH_MINOR >= 3
  printf("\"num_sync_all_streams\":%lld,\"num_device_alloc\":%lld,\"num_device_free\":%lld,",
         (i64)stats.num_sync_all_streams, (i64)stats.num_device_alloc, (i64)stats.num_device_free);
#endif
#if TORCH_MINOR >= 12
  printf("\"num_oom_rejections\":%lld,", (i64)stats.num_oom_rejections);
#endif
#if TORCH_MINOR >= 13
  for (auto &pool : stats.reserved_bytes_by_private_pools)
    print_stats("reserved_bytes_by_private_pools." + std::to_string(pool.first.first) + "_" +
                    std::to_string(pool.first.second), pool.second);
#endif
  printf("\"num_alloc_retries\":%lld,\"num_ooms\":%lld,\"max_split_size\":%lld", (i64)stats.num_alloc_retries,
         (i64)stats.num_ooms, (i64)stats.max_split_size);
}

// [action, address, size, stream, pool]; before 2.8 an event does not know its pool
template <class Event>
static void print_event(const Event &event) {
#if TORCH_MINOR >= 8
  u64 first = event.mempool_.first, second = event.mempool_.second;
#else
  u64 first = 0, second = 0;
#endif
  printf("[\"%s\",%llu,%llu,%llu,[%llu,%llu]]", action_name((int)event.action_), (u64)event.addr_, (u64)event.size_,
         (u64)event.stream_, first, second);
}

template <class Segment>
static void print_segment(const Segment &segment) {
#if TORCH_MINOR >= 1
  u64 first = segment.owner_private_pool_id.first, second = segment.owner_private_pool_id.second;
  int expandable = segment.is_expandable;
#else
  u64 first = 0, second = 0;
  int expandable = 0;
#endif
  printf("{\"address\":%llu,\"total_size\":%llu,\"allocated_size\":%llu,\"active_size\":%llu,\"requested_size\":%llu,"
         "\"stream\":%llu,\"is_large\":%d,\"is_expandable\":%d,\"pool\":[%llu,%llu],\"blocks\":[",
         (u64)segment.address, (u64)segment.total_size, (u64)segment.allocated_size, (u64)segment.active_size,
         (u64)segment.requested_size, (u64)segment.stream, (int)segment.is_large, expandable, first, second);
  const char *comma = "";
  for (auto &block : segment.blocks) {
    printf("%s[%llu,%llu,%d,%d]", comma, (u64)block.size, (u64)block.requested_size, (int)block.allocated,
           (int)block.active);
    comma = ",";
  }
  printf("]}");
}

template <class Items, class Print>
static void print_list(const Items &items, Print print) {
  const char *comma = "";
  printf("[");
  for (auto &item : items) {
    printf("%s", comma);
    print(item);
    comma = ",\n";
  }
  printf("]");
}

template <class Snapshot>
static void print_settings(const Snapshot &snapshot) {
#if TORCH_MINOR >= 3
  auto &config = snapshot.config_metadata;
  printf("\"max_split_size\":%lld,\"garbage_collection_threshold\":%.17g,\"expandable_segments\":%d,"
         "\"pinned_num_register_threads\":%lld,\"release_lock_on_cudamalloc\":%d,\"pinned_use_cuda_host_register\":%d,",
         (i64)config.max_split_size, config.garbage_collection_threshold, (int)config.expandable_segments,
         (i64)config.pinned_num_register_threads, (int)config.release_lock_on_malloc,
         (int)config.pinned_use_host_register);
#if TORCH_MINOR >= 9
  printf("\"graph_capture_record_stream_reuse\":%d,", (int)config.graph_capture_record_stream_reuse);
#endif
#if TORCH_MINOR >= 13
  printf("\"max_round_threshold\":%lld,\"max_cached_size\":%lld,", (i64)config.max_round_threshold,
         (i64)config.max_cached_size);
#endif
  printf("\"roundup_power2_divisions\":");
  print_list(config.roundup_power2_divisions, [](size_t divisions) { printf("%llu", (u64)divisions); });
#endif
}

static void dump() {
  printf("{\"stats\":{");
  print_statistics();
  auto snapshot = caching::get()->snapshot();
  printf("},\n\"trace\":");
  print_list(snapshot.device_traces[0], [](auto &event) { print_event(event); });
  printf(",\n\"segments\":");
  print_list(snapshot.segments, [](auto &segment) { print_segment(segment); });
  printf(",\n\"settings\":{");
  print_settings(snapshot);
  printf("}}\n\n");
}

#if TORCH_MINOR >= 3
// What torch.cuda.memory._set_allocator_settings does.  Options before one that is refused stay applied.
static void change_settings(const std::string &settings) {
  try {
    caching::setAllocatorSettings(settings);
  } catch (const std::exception &) {
  }
  auto stats = caching::get()->getDeviceStats(0);
  printf("%lld %lld\n", (i64)stats.allocation[0].allocated, (i64)stats.num_ooms);
}

static void return_to_checkpoint(std::shared_ptr<caching::AllocatorState> state, long id, std::map<long, void *> &live) {
  auto delta = caching::get()->setCheckpointPoolState(0, state);
  for (void *address : delta.ptrs_freed)
    for (auto block = live.begin(); block != live.end(); ++block)
      if (block->second == address) {
        printf("%ld ", block->first);
        live.erase(block);
        break;
      }
  printf(":");
  for (auto &storage : delta.dataptrs_allocd) {
    live[id++] = storage.get();
    printf(" %llu", (u64)storage.get());
    storage.release_context();
  }
  printf("\n");
}
#endif

// Some of PyTorch's orders are those of hash tables of pointers.  With fixed addresses every run gives the same one.
static void start_again_at_fixed_addresses(char **arguments) {
  int now = personality(0xffffffff);
  if (now == -1 || (now & ADDR_NO_RANDOMIZE) || personality(now | ADDR_NO_RANDOMIZE) == -1) return;
  execv("/proc/self/exe", arguments);
}

int main(int, char **arguments) {
  start_again_at_fixed_addresses(arguments);
  auto *allocator = caching::get();
  allocator->init(1);
#if TORCH_MINOR >= 1
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
#endif
#if TORCH_MINOR >= 13
  c10::cuda::detail::init_p2p_access_cache(1);
#endif
  start_recording();
  std::map<long, void *> live;
#if TORCH_MINOR >= 3
  std::map<long, std::shared_ptr<caching::AllocatorState>> checkpoints;
#endif
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    char command = 0;
    long id = 0;
    u64 number = 0, first = 0, second = 0;
    words >> command;
    if (command == 'a') {
      size_t size;
      words >> id >> size >> number;
      void *address = nullptr;
      try {
        address = allocator->raw_alloc_with_stream(size, (cudaStream_t)number);
        live[id] = address;
      } catch (const c10::OutOfMemoryError &) {
      }
      printf("%llu\n", (u64)address);
      fflush(stdout);  // the other side waits for it, and it survives an abort inside PyTorch
    } else if (command == 'u') {
      words >> id >> number;
      use_on_stream(live.at(id), number);
    } else if (command == 'f') {
      words >> id;
      allocator->raw_delete(live.at(id));
      live.erase(id);
    } else if (command == 's') {
      allocator->snapshot();
    } else if (command == 'h') {
      words >> number;
      fake_hold(number);
    } else if (command == 'c') {
      words >> number;
      fake_release(number);
    } else if (command == 'F') {
      double fraction;
      words >> fraction;
      allocator->setMemoryFraction(fraction, 0);
    } else if (command == 'd') {
      dump();
      fflush(stdout);
    } else if (command == 'e' && !(words >> first >> second)) {
      allocator->emptyCache();
#if TORCH_MINOR >= 8
    } else if (command == 'e') {
      allocator->emptyCache({first, second});
#endif
#if TORCH_MINOR >= 8
    } else if (command == 'U') {
      words >> first >> second >> number;
#if TORCH_MINOR >= 11
      allocator->setUseOnOOM(0, {first, second}, number);
#else
      allocator->setUseOnOOM(0, {first, second});
#endif
#endif
#if TORCH_MINOR >= 10
    } else if (command == 'N') {
      words >> first >> second;
      allocator->setNoSplit(0, {first, second});
#endif
#if TORCH_MINOR >= 3
    } else if (command == 'S') {
      change_settings(line.substr(std::min<size_t>(2, line.size())));
      fflush(stdout);
    } else if (command == 'K') {
      words >> first >> second >> number;
      checkpoints[number] = allocator->getCheckpointState(0, {first, second});
    } else if (command == 'L') {
      words >> number >> id;
      return_to_checkpoint(checkpoints.at(number), id, live);
      fflush(stdout);
    } else if (command == 'B') {
      std::string stream;
      words >> first >> second >> stream;
      u64 only = stream == "*" ? 0 : std::stoull(stream);
      bool any = stream == "*";
      allocator->beginAllocateToPool(0, {first, second},
                                     [=](cudaStream_t asked) { return any || (u64)asked == only; });
    } else if (command == 'E') {
      words >> first >> second;
      allocator->endAllocateToPool(0, {first, second});
    } else if (command == 'R') {
      words >> first >> second;
      allocator->releasePool(0, {first, second});
    } else if (command == 'm') {
#if TORCH_MINOR >= 13
      words >> number;
      number ? allocator->markCaptureBegin(0) : allocator->markCaptureEnd(0);
#endif
#endif
    } else {
      fprintf(stderr, "harness: unknown command %s\n", line.c_str());
      return 2;
    }
  }
  fflush(stdout);
  _Exit(0);  // without the clean-up of the libraries, which would talk to the GPU
}
