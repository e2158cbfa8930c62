// clang.cc - the Clang 19 libraries behind one C function; the only C++ file.
//
// A unit of text goes through CompilerInstance to an object in memory.  The
// kernels are freestanding: no header search, no libc.  Floating point may be
// re-associated and contracted (dot products must vectorise) but infinities
// and NaNs keep their meaning, and no reciprocal estimates replace divisions,
// whose refinement turns 1/0 into NaN.
#include "codegen/cpu/clang.h"

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <clang/Basic/DiagnosticOptions.h>
#include <clang/CodeGen/CodeGenAction.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/CompilerInvocation.h>
#include <clang/Frontend/TextDiagnosticPrinter.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/TargetParser/Host.h>

namespace {

std::vector<std::string> target_args(const std::string &cpu)
{
    std::vector<std::string> args = {"-triple",
                                     llvm::sys::getDefaultTargetTriple(),
                                     "-target-cpu"};
    if (cpu != "native") {
        args.push_back(cpu);
        return args;
    }
    args.push_back(llvm::sys::getHostCPUName().str());
    for (const auto &feature : llvm::sys::getHostCPUFeatures()) {
        args.push_back("-target-feature");
        args.push_back((feature.second ? "+" : "-") + feature.first().str());
    }
    return args;
}

std::vector<std::string> unit_args(const ClangJob &job)
{
    std::vector<std::string> args = target_args(job.cpu);

    for (const char *arg :
         {"-emit-obj", "-std=gnu11", "-ffreestanding", "-nostdsysteminc",
          "-nobuiltininc", "-O3", "-vectorize-loops", "-vectorize-slp",
          "-mprefer-vector-width=512", "-ffp-contract=fast", "-mreassociate",
          "-fno-signed-zeros", "-freciprocal-math", "-mrecip=none",
          "-mrelocation-model", "pic", "-pic-level", "2",
          "-mframe-pointer=none", "-Wall", "-Wno-unused-function", "-x", "c"})
        args.push_back(arg);
    args.push_back(job.name);
    return args;
}

void send(const ClangSink &sink, llvm::StringRef bytes)
{
    sink.write(sink.to, bytes.data(), bytes.size());
}

bool compile(const ClangJob &job, llvm::raw_pwrite_stream &object,
             llvm::raw_ostream &messages)
{
    std::vector<std::string> args = unit_args(job);
    std::vector<const char *> argv;
    auto text = llvm::MemoryBuffer::getMemBufferCopy(
        std::string(job.prelude) + "#line 1 \"" + job.name + ".c\"\n" +
            job.text,
        job.name);
    llvm::IntrusiveRefCntPtr<clang::DiagnosticOptions> options(
        new clang::DiagnosticOptions);
    clang::TextDiagnosticPrinter printer(messages, options.get());
    clang::CompilerInstance compiler;
    clang::EmitObjAction action;

    options->ShowPresumedLoc = 1; // obey #line
    for (const std::string &arg : args)
        argv.push_back(arg.c_str());
    compiler.setVerboseOutputStream(messages);
    compiler.createDiagnostics(&printer, false);
    if (!clang::CompilerInvocation::CreateFromArgs(
            compiler.getInvocation(), argv, compiler.getDiagnostics()))
        return false;
    compiler.getFrontendOpts().Inputs.clear();
    compiler.getFrontendOpts().Inputs.emplace_back(
        text->getMemBufferRef(), clang::InputKind(clang::Language::C));
    compiler.setOutputStream(
        std::make_unique<llvm::buffer_ostream>(object));
    return compiler.ExecuteAction(action) &&
           !compiler.getDiagnostics().hasErrorOccurred();
}

} // namespace

extern "C" __attribute__((visibility("default"))) int
megac_clang_compile(const ClangJob *job)
{
    static std::once_flag ready;
    llvm::SmallVector<char, 0> object;
    std::string messages;
    bool ok;

    std::call_once(ready, [] {
        llvm::InitializeNativeTarget();
        llvm::InitializeNativeTargetAsmPrinter();
        llvm::InitializeNativeTargetAsmParser();
    });
    {
        llvm::raw_svector_ostream object_stream(object);
        llvm::raw_string_ostream message_stream(messages);
        ok = compile(*job, object_stream, message_stream);
    }
    if (ok)
        send(job->object, llvm::StringRef(object.data(), object.size()));
    send(job->messages, messages);
    return ok ? 1 : 0;
}
