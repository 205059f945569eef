export function Failure({ message }: { message: string }) {
  return (
    <p className="failure" role="alert">
      {message}
    </p>
  );
}
