// What happens to threads that Python ends while they are in C++.
//
// Before 3.14, Python ends a thread that asks for its lock while the interpreter ends, by pthread_exit. With glibc,
// this unwinds the stack: destructors would change Python's objects without the lock, while another thread uses them.
// So such a thread waits for the end of the process instead, as it does since 3.14
// (https://github.com/python/cpython/issues/87135).
//
// For each frame of C++ that has something to destroy or to catch, the unwinder first asks the personality routine. The
// linker puts this one in the place of the library's (--wrap, see CMakeLists.txt), in code that is linked statically,
// too. See https://itanium-cxx-abi.github.io/cxx-abi/abi-eh.html#base-personality.
#include <unwind.h>

#include <chrono>
#include <thread>

namespace jaxexp::bindings {
extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception, _Unwind_Context* context);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception, _Unwind_Context* context) {
  if (actions & _UA_FORCE_UNWIND)
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  return __real___gxx_personality_v0(version, actions, kind, exception, context);
}
}
}  // namespace jaxexp::bindings
