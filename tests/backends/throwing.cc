/* What does a compiled backend in C++ do whose exception leaves a function of the interface? */
#include <stdexcept>

extern "C" void* TRITONBACKEND_ModelInstanceExecute(void*, void**, unsigned) { throw std::runtime_error("thrown on purpose"); }
